"""The public names, each in one line: `__init__.py` loads them on first use from where this table says."""

from .checks.accounting.network_size import count_network
from .checks.accounting.simulator_size import count_parameters
from .checks.audit.audit import audit
from .checks.audit.certificate import Certificate
from .checks.constructions import compare_constructions
from .checks.plan.estimate import plan
from .checks.verify.verification import verify
from .kinds.compare import CompareResult, compare
from .kinds.probe import ProbeResult, probe
from .kinds.sweep import SweepResult, sweep
from .reports.page import report

__all__ = [
    "Certificate",
    "CompareResult",
    "ProbeResult",
    "SweepResult",
    "audit",
    "compare",
    "compare_constructions",
    "count_network",
    "count_parameters",
    "plan",
    "probe",
    "report",
    "sweep",
    "verify",
]
