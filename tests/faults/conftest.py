"""What happens when something goes wrong: nothing is lost beyond the last checkpoint, every message names what happened, nothing hangs.

A few seeded cases by default; OOM_FAULTS=all runs every case (minutes). See harness/campaign.py.
"""

from harness.campaign import dice  # noqa: F401
