"""How EC2 calls what the stand-in provider makes: in requests, in answers, and by what contains what."""

from __future__ import annotations

KINDS = {
    "Instances": "aws_instance",
    "Volumes": "aws_ebs_volume",
    "CapacityReservations": "aws_ec2_capacity_reservation",
    "NatGateways": "aws_nat_gateway",
    "Addresses": "aws_eip",
    "VpcEndpoints": "aws_vpc_endpoint",
    "VpcPeeringConnections": "aws_vpc_peering_connection",
    "LaunchTemplates": "aws_launch_template",
    "PlacementGroups": "aws_placement_group",
    "KeyPairs": "aws_key_pair",
    "InternetGateways": "aws_internet_gateway",
    "RouteTables": "aws_route_table",
    "Subnets": "aws_subnet",
    "SecurityGroups": "aws_security_group",
    "SecurityGroupRules": "aws_vpc_security_group_ingress_rule",
    "Vpcs": "aws_vpc",
}
# The parameter that names what is deleted.
DELETIONS = {
    "DeleteVolume": ("aws_ebs_volume", "VolumeId"),
    "CancelCapacityReservation": ("aws_ec2_capacity_reservation", "CapacityReservationId"),
    "DeleteNatGateway": ("aws_nat_gateway", "NatGatewayId"),
    "ReleaseAddress": ("aws_eip", "AllocationId"),
    "DeleteVpcEndpoints": ("aws_vpc_endpoint", "VpcEndpointId.1"),
    "DeleteVpcPeeringConnection": ("aws_vpc_peering_connection", "VpcPeeringConnectionId"),
    "DeleteLaunchTemplate": ("aws_launch_template", "LaunchTemplateId"),
    "DeletePlacementGroup": ("aws_placement_group", "GroupName"),
    "DeleteKeyPair": ("aws_key_pair", "KeyName"),
    "DeleteInternetGateway": ("aws_internet_gateway", "InternetGatewayId"),
    "DeleteRouteTable": ("aws_route_table", "RouteTableId"),
    "DeleteSubnet": ("aws_subnet", "SubnetId"),
    "DeleteSecurityGroup": ("aws_security_group", "GroupId"),
    "DeleteVpc": ("aws_vpc", "VpcId"),
}
STAND_IN = {
    "aws_subnet": ("aws_instance",),
    "aws_security_group": ("aws_instance",),
    "aws_placement_group": ("aws_instance",),
    "aws_route_table": ("aws_route_table_association",),
    "aws_vpc": ("aws_subnet", "aws_security_group", "aws_internet_gateway", "aws_route_table"),
}
# What goes together with what it belongs to.
PARTS = {
    "aws_route_table": ("aws_route",),
    "aws_vpc_peering_connection": ("aws_vpc_peering_connection_accepter",),
    "aws_security_group": ("aws_vpc_security_group_ingress_rule", "aws_vpc_security_group_egress_rule"),
}
SETS = {
    "Instances": "reservationSet",
    "Volumes": "volumeSet",
    "CapacityReservations": "capacityReservationSet",
    "NatGateways": "natGatewaySet",
    "Addresses": "addressesSet",
    "VpcEndpoints": "vpcEndpointSet",
    "VpcPeeringConnections": "vpcPeeringConnectionSet",
    "LaunchTemplates": "launchTemplates",
    "PlacementGroups": "placementGroupSet",
    "KeyPairs": "keySet",
    "InternetGateways": "internetGatewaySet",
    "RouteTables": "routeTableSet",
    "Subnets": "subnetSet",
    "SecurityGroups": "securityGroupInfo",
    "SecurityGroupRules": "securityGroupRuleSet",
    "Vpcs": "vpcSet",
}
NAMES = {
    "aws_instance": "instanceId",
    "aws_ebs_volume": "volumeId",
    "aws_ec2_capacity_reservation": "capacityReservationId",
    "aws_nat_gateway": "natGatewayId",
    "aws_eip": "allocationId",
    "aws_vpc_endpoint": "vpcEndpointId",
    "aws_vpc_peering_connection": "vpcPeeringConnectionId",
    "aws_launch_template": "launchTemplateId",
    "aws_placement_group": "groupName",
    "aws_key_pair": "keyName",
    "aws_internet_gateway": "internetGatewayId",
    "aws_route_table": "routeTableId",
    "aws_subnet": "subnetId",
    "aws_security_group": "groupId",
    "aws_vpc_security_group_ingress_rule": "securityGroupRuleId",
    "aws_vpc_security_group_egress_rule": "securityGroupRuleId",
    "aws_vpc": "vpcId",
}
