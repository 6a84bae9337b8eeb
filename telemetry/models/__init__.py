"""Define the models of usage and money.

Migrations create the sample table with plain SQL, because it has daily partitions.
"""

from telemetry.models.adjustments import (
    ADJUSTMENT_TRANSITIONS,
    Adjustment,
    AdjustmentKindChoices,
    AdjustmentState,
)
from telemetry.models.alerting.alerts import ALERT_TRANSITIONS, Alert
from telemetry.models.alerting.rules import AlertRule
from telemetry.models.billing_modes import BillingMode, TeamBillingMode
from telemetry.models.billing_zones import BillingZone
from telemetry.models.budgets import (
    Budget,
    BudgetAction,
    BudgetAlert,
    BudgetForecast,
    BudgetMeasure,
    BudgetPeriod,
    OrganisationForecast,
)
from telemetry.models.capacity.studies import CAPACITY_STUDY_TRANSITIONS, CapacityStudy
from telemetry.models.charges import (
    UNMAPPED_LINE,
    Charge,
    ChargeBucketChoices,
    ChargedUntil,
    ChargeEvidence,
    SettledAllocation,
    SettledStateChange,
)
from telemetry.models.close_proposals import CloseProposal
from telemetry.models.cost_centre_statements import CostCentreStatement
from telemetry.models.cost_centres import CostCentre, CostCentreShare, SettledShare
from telemetry.models.health import HealthEvent, HealthRule, Stray
from telemetry.models.month_rehearsals import MonthRehearsal
from telemetry.models.prices import (
    MAX_FORGIVEN_MINUTES,
    BillingCurrency,
    Price,
    PriceFactor,
    RefundLimit,
)
from telemetry.models.readings import (
    DcgmScrape,
    DcgmTarget,
    HostUse,
    ProcessUse,
    ReadingFault,
    RunUse,
    SlowReading,
)
from telemetry.models.rollups import EvidenceDue, Rollup, RollupDue
from telemetry.models.run_reports import RunReport, RunReportUnit
from telemetry.models.samples import (
    HOST_HOUR_TRANSITIONS,
    Batch,
    HostHour,
    HostHoursRecorded,
    Retention,
    Sample,
    SampleGap,
    SampleWatermark,
    sample_bins,
)
from telemetry.models.statements import (
    STATEMENT_TRANSITIONS,
    ChargeCell,
    IdlePayer,
    Statement,
    StatementDay,
    StatementLine,
    StatementLineDay,
    StatementLinePerson,
    StatementState,
)
from telemetry.models.unusual_spend import (
    SPEND_TO_EXPLAIN,
    UnusualSpend,
    UnusualSpendExplanation,
    UnusualSpendKind,
    UnusualSpendSearch,
)

__all__ = [
    "ADJUSTMENT_TRANSITIONS",
    "ALERT_TRANSITIONS",
    "CAPACITY_STUDY_TRANSITIONS",
    "Adjustment",
    "AdjustmentKindChoices",
    "AdjustmentState",
    "Alert",
    "AlertRule",
    "Batch",
    "BillingCurrency",
    "BillingMode",
    "BillingZone",
    "Budget",
    "BudgetAction",
    "BudgetAlert",
    "BudgetForecast",
    "BudgetMeasure",
    "BudgetPeriod",
    "CapacityStudy",
    "Charge",
    "ChargeBucketChoices",
    "ChargeCell",
    "ChargeEvidence",
    "ChargedUntil",
    "CloseProposal",
    "CostCentre",
    "CostCentreShare",
    "CostCentreStatement",
    "DcgmScrape",
    "DcgmTarget",
    "EvidenceDue",
    "HealthEvent",
    "HealthRule",
    "HOST_HOUR_TRANSITIONS",
    "HostHour",
    "HostHoursRecorded",
    "HostUse",
    "IdlePayer",
    "MAX_FORGIVEN_MINUTES",
    "MonthRehearsal",
    "OrganisationForecast",
    "Price",
    "PriceFactor",
    "ProcessUse",
    "ReadingFault",
    "RefundLimit",
    "Retention",
    "Rollup",
    "RollupDue",
    "RunReport",
    "RunReportUnit",
    "RunUse",
    "SPEND_TO_EXPLAIN",
    "STATEMENT_TRANSITIONS",
    "Sample",
    "SampleGap",
    "SampleWatermark",
    "SettledAllocation",
    "SettledShare",
    "SettledStateChange",
    "SlowReading",
    "Statement",
    "StatementDay",
    "StatementLine",
    "StatementLineDay",
    "StatementLinePerson",
    "StatementState",
    "Stray",
    "TeamBillingMode",
    "UNMAPPED_LINE",
    "UnusualSpend",
    "UnusualSpendExplanation",
    "UnusualSpendKind",
    "UnusualSpendSearch",
    "sample_bins",
]
