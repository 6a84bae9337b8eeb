"""Register the template tags and filters of gpupool: ``{% load gpupool %}``.

The functions behind them are in ``portal/web/components``. These functions get the time as an argument. They
do not query the database and do not round money. They show None as "unknown", never as zero.
"""

from django import template

from portal.web.components import drawings, elements, quantities, state_display, times
from portal.wording.people.device_texts import device_name

register = template.Library()

register.filter("duration", quantities.short_duration)
register.filter(quantities.money)
register.filter(quantities.amount)
register.filter(quantities.measured)
register.filter(quantities.percent)
register.filter(quantities.grouped)
register.filter(quantities.data_size)
register.filter(quantities.gpu_model)
register.filter(device_name)
register.simple_tag(quantities.gpus)
register.simple_tag(times.when)
register.simple_tag(times.window)
register.simple_tag(times.ago)
register.simple_tag(times.freshness)
register.simple_tag(state_display.icon)
register.simple_tag(state_display.state)
register.simple_tag(state_display.team_mark)
register.filter(drawings.use_step)
register.simple_tag(drawings.spark)
register.simple_tag(drawings.bar)
register.inclusion_tag("components/steps.html")(elements.steps)
register.inclusion_tag("components/button.html")(elements.button)
register.inclusion_tag("components/buttons.html")(elements.buttons)
register.simple_block_tag(elements.note)
register.simple_block_tag(takes_context=True)(elements.panel)
register.simple_block_tag(elements.empty_state)
register.simple_tag(takes_context=True)(elements.sort_header)
register.inclusion_tag("components/field.html")(elements.field)
register.inclusion_tag("components/filter_field.html")(elements.filter_field)
register.simple_tag(elements.table_cells)
