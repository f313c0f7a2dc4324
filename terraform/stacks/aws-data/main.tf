provider "aws" {
  region = var.region

  # The provider takes a zone without capacity for something that passes: it would ask 25 times, for most of an hour,
  # whatever the timeouts say (github.com/hashicorp/terraform-provider-aws/issues/43193). Whoever applies this tries
  # again what may pass, and asks elsewhere for what doesn't.
  max_retries = 4
}

locals {
  own_bucket = try(var.bucket.own, false) ? toset([var.bucket.name]) : toset([])
  own_role   = var.identity == null && (var.bucket != null || var.tunnel) ? toset(["own"]) : toset([])

  # Objects of one bucket, and nothing else in S3.
  objects = var.bucket == null ? [] : [
    {
      Effect   = "Allow"
      Action   = ["s3:ListBucket"]
      Resource = "arn:aws:s3:::${var.bucket.name}"
    },
    {
      Effect   = "Allow"
      Action   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
      Resource = "arn:aws:s3:::${var.bucket.name}/*"
    },
  ]

  # What the agent of Systems Manager needs to carry a session, and nothing of its other services
  # (docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html).
  sessions = !var.tunnel ? [] : [
    {
      Effect = "Allow"
      Action = [
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
      ]
      Resource = "*"
    },
  ]
}

# The run's own bucket. `force_destroy` empties it on destroy, so this root is destroyed last, and only after the
# results were fetched.
resource "aws_s3_bucket" "run" {
  for_each = local.own_bucket

  bucket        = each.value
  force_destroy = true
  tags          = var.labels
}

resource "aws_s3_bucket_public_access_block" "run" {
  for_each = aws_s3_bucket.run

  bucket                  = each.value.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# Nothing expires by itself: a bucket that is kept holds somebody's results.
resource "aws_s3_bucket_lifecycle_configuration" "run" {
  for_each = aws_s3_bucket.run

  bucket = each.value.id

  rule {
    id     = "end-uploads-that-were-broken-off"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }
}

resource "aws_iam_role" "node" {
  for_each = local.own_role

  name        = "${var.name}-node"
  description = "Nodes of one run of sailor-cloud"
  tags        = var.labels

  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy" "node" {
  for_each = aws_iam_role.node

  name   = "${var.name}-node"
  role   = each.value.name
  policy = jsonencode({ Version = "2012-10-17", Statement = concat(local.objects, local.sessions) })
}

resource "aws_iam_instance_profile" "node" {
  for_each = aws_iam_role.node

  name = "${var.name}-node"
  role = each.value.name
  tags = var.labels

  depends_on = [aws_iam_role_policy.node]
}
