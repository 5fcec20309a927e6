"""Error sweep of the verbs about requests to people and rules: each call of the command fails once with each error that it
may return. Points and verdicts are those of the kill sweep of verbs.
"""

import sys

from . import sweep, sweep_verbs, verbs_asks

SCENARIOS = {scenario.name: scenario for scenario in verbs_asks.SCENARIOS}


def main(argv=None) -> int:
    return sweep.main(argv, errors=True, doc=__doc__, kit=sweep_verbs, scenarios=SCENARIOS, module="errors_verbs")


if __name__ == "__main__":
    sys.exit(main())
