# Deletes everything of the run from within the account, in case nobody else has done it in time. It is made before any
# node and destroyed after all of them.

locals {
  watchdog      = var.watchdog_at == null ? toset([]) : toset(["own"])
  watchdog_name = "${var.name}-watchdog"
  own_names     = ["${var.name}-node", local.watchdog_name]
}

resource "aws_iam_role" "watchdog" {
  for_each = local.watchdog

  name        = local.watchdog_name
  description = "Deletes one run of sailor-cloud once it is overdue"
  tags        = var.labels

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = ["lambda.amazonaws.com", "scheduler.amazonaws.com"] }
    }]
  })
}

resource "aws_iam_role_policy" "watchdog" {
  for_each = local.watchdog

  name = local.watchdog_name
  role = aws_iam_role.watchdog[each.key].name

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Action = [
          "ec2:DescribeAddresses",
          "ec2:DescribeCapacityReservations",
          "ec2:DescribeInstances",
          "ec2:DescribeInternetGateways",
          "ec2:DescribeKeyPairs",
          "ec2:DescribeLaunchTemplates",
          "ec2:DescribeNatGateways",
          "ec2:DescribePlacementGroups",
          "ec2:DescribeRouteTables",
          "ec2:DescribeSecurityGroups",
          "ec2:DescribeSubnets",
          "ec2:DescribeVolumes",
          "ec2:DescribeVpcEndpoints",
          "ec2:DescribeVpcPeeringConnections",
          "ec2:DescribeVpcs",
        ]
        Resource = "*"
      },
      {
        Effect = "Allow"
        Action = [
          "ec2:CancelCapacityReservation",
          "ec2:DeleteInternetGateway",
          "ec2:DeleteKeyPair",
          "ec2:DeleteLaunchTemplate",
          "ec2:DeleteNatGateway",
          "ec2:DeletePlacementGroup",
          "ec2:DeleteRouteTable",
          "ec2:DeleteSecurityGroup",
          "ec2:DeleteSubnet",
          "ec2:DeleteVolume",
          "ec2:DeleteVpc",
          "ec2:DeleteVpcEndpoints",
          "ec2:DeleteVpcPeeringConnection",
          "ec2:DetachInternetGateway",
          "ec2:DisassociateRouteTable",
          "ec2:ReleaseAddress",
          "ec2:TerminateInstances",
        ]
        Resource  = "*"
        Condition = { StringEquals = { "aws:ResourceTag/sailor-cloud-run" = var.labels["sailor-cloud-run"] } }
      },
      {
        Effect = "Allow"
        Action = [
          "iam:DeleteInstanceProfile",
          "iam:DeleteRole",
          "iam:DeleteRolePolicy",
          "iam:GetInstanceProfile",
          "iam:GetRole",
          "iam:RemoveRoleFromInstanceProfile",
        ]
        Resource = concat(
          [for name in local.own_names : "arn:aws:iam::*:role/${name}"],
          ["arn:aws:iam::*:instance-profile/${var.name}-node"],
        )
      },
      {
        # Amazon S3 refuses this for a bucket that holds anything.
        Effect   = "Allow"
        Action   = ["s3:DeleteBucket", "s3:GetBucketTagging"]
        Resource = "arn:aws:s3:::${var.name}-data"
      },
      {
        Effect   = "Allow"
        Action   = ["lambda:DeleteFunction", "lambda:InvokeFunction"]
        Resource = "arn:aws:lambda:${var.region}:*:function:${local.watchdog_name}"
      },
      {
        Effect = "Allow"
        Action = ["scheduler:DeleteSchedule", "scheduler:DeleteScheduleGroup"]
        Resource = [
          "arn:aws:scheduler:${var.region}:*:schedule-group/${local.watchdog_name}",
          "arn:aws:scheduler:${var.region}:*:schedule/${local.watchdog_name}/*",
        ]
      },
      {
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:DeleteLogGroup", "logs:PutLogEvents"]
        Resource = "arn:aws:logs:${var.region}:*:log-group:/aws/lambda/${local.watchdog_name}:*"
      },
    ]
  })
}

resource "aws_cloudwatch_log_group" "watchdog" {
  for_each = local.watchdog

  name              = "/aws/lambda/${local.watchdog_name}"
  retention_in_days = 30
  tags              = var.labels
}

resource "aws_lambda_function" "watchdog" {
  for_each = local.watchdog

  function_name    = local.watchdog_name
  description      = "Deletes one run of sailor-cloud once it is overdue"
  role             = aws_iam_role.watchdog[each.key].arn
  runtime          = "python3.13"
  handler          = "main.handler"
  filename         = "${path.module}/watchdog.zip"
  source_code_hash = filebase64sha256("${path.module}/watchdog.zip")
  timeout          = 900
  memory_size      = 256
  tags             = var.labels

  environment {
    variables = {
      RUN     = var.labels["sailor-cloud-run"]
      NAME    = var.name
      DUE_AT  = var.watchdog_at
      REGIONS = join(" ", var.regions)
      BUCKET  = join("", local.own_bucket)
    }
  }

  depends_on = [aws_iam_role_policy.watchdog, aws_cloudwatch_log_group.watchdog]
}

# Schedules have no tags, their group has.
resource "aws_scheduler_schedule_group" "watchdog" {
  for_each = local.watchdog

  name = local.watchdog_name
  tags = var.labels
}

# Every 15 minutes from then on, until nothing is left and the function deletes its own schedule.
resource "aws_scheduler_schedule" "watchdog" {
  for_each = local.watchdog

  name                = local.watchdog_name
  group_name          = aws_scheduler_schedule_group.watchdog[each.key].name
  schedule_expression = "rate(15 minutes)"
  start_date          = var.watchdog_at

  flexible_time_window {
    mode = "OFF"
  }

  target {
    arn      = aws_lambda_function.watchdog[each.key].arn
    role_arn = aws_iam_role.watchdog[each.key].arn
    input    = "{}"
  }
}
