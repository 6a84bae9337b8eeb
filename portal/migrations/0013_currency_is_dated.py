"""The currency of the organisation is dated: ``telemetry_billingcurrency`` has it."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("portal", "0012_billing_settings"), ("telemetry", "0013_currencies")]

    operations = [migrations.RemoveField("organisation", "currency")]
