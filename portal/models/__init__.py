"""Define the models of the portal: accounts, submissions and approvals, notices, audit, workspaces."""

from portal.models.accounts import ApiToken, LeaverWork, Membership, Organisation, TokenScope, User
from portal.models.audit import AuditEvent
from portal.models.audit_seals import AuditProgress, AuditSeal, SealedAuditEvent
from portal.models.handovers import WorkHandover
from portal.models.idempotency import IdempotencyRecord
from portal.models.identity import (
    BreakGlassLink,
    ClaimGrant,
    ClaimRule,
    DirectorySync,
    IdentityProvider,
)
from portal.models.notice_channels import (
    NOTICE_MESSAGE_TRANSITIONS,
    NoticeChannel,
    NoticeMessage,
    NoticeMessageItem,
    NoticeMessageState,
)
from portal.models.notices import NoticeMark, Notification, ToldStart
from portal.models.sign_ins import BrowserSession, SetupCode, TokenAddress
from portal.models.submissions import SUBMISSION_TRANSITIONS, Approval, Submission, SubmissionState, Template
from portal.models.workspaces import (
    EntryCode,
    WorkspaceOrigin,
    WorkspaceSession,
    hash_workspace_secret,
)

__all__ = [
    "ApiToken",
    "Approval",
    "AuditEvent",
    "AuditProgress",
    "AuditSeal",
    "IdempotencyRecord",
    "BreakGlassLink",
    "BrowserSession",
    "ClaimGrant",
    "ClaimRule",
    "DirectorySync",
    "EntryCode",
    "IdentityProvider",
    "LeaverWork",
    "Membership",
    "NOTICE_MESSAGE_TRANSITIONS",
    "NoticeChannel",
    "NoticeMark",
    "NoticeMessage",
    "NoticeMessageItem",
    "NoticeMessageState",
    "Notification",
    "Organisation",
    "SUBMISSION_TRANSITIONS",
    "SealedAuditEvent",
    "SetupCode",
    "Submission",
    "SubmissionState",
    "Template",
    "TokenAddress",
    "ToldStart",
    "TokenScope",
    "User",
    "WorkHandover",
    "WorkspaceOrigin",
    "WorkspaceSession",
    "hash_workspace_secret",
]
