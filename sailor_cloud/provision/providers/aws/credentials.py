"""The credentials of the caller's AWS profile, for programs that read no profiles."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def aws_credentials() -> dict[str, str]:
    """Return the credentials as environment variables; none without boto3 or credentials."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError:
        return {}
    try:
        credentials = boto3.Session().get_credentials()
        known = credentials.get_frozen_credentials() if credentials is not None else None
    except BotoCoreError as error:
        logger.info("no credentials of AWS: %s", type(error).__name__)
        return {}
    if known is None or not known.access_key or not known.secret_key:
        return {}
    token = {"AWS_SESSION_TOKEN": known.token} if known.token else {}
    return {"AWS_ACCESS_KEY_ID": known.access_key, "AWS_SECRET_ACCESS_KEY": known.secret_key, **token}
