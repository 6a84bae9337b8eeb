"""Remove the organisation's currency. ``telemetry_billingcurrency`` has one for each period instead."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("portal", "0012_billing_settings"), ("telemetry", "0013_currencies")]

    operations = [migrations.RemoveField("organisation", "currency")]
