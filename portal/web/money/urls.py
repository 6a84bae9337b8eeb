"""Define the URL patterns of utilisation, chargeback, prices and budgets."""

from django.urls import path

from portal.web.money import budgets, charge_line, chargeback, exports, idle_payer, rate_card
from portal.web.money.adjusting import adjustment_pages
from portal.web.money.charges import lines as charge_lines
from portal.web.money.charges import tree as charge_tree
from portal.web.money.closing import (
    billing_settings,
    cost_centre_statements,
    month_close,
    showback,
    unusual_spend,
)
from portal.web.money.cost_centres import import_page
from portal.web.money.cost_centres import views as centre_views
from portal.web.money.overview import files as overview_files
from portal.web.money.utilisation import drill_views, request_views
from portal.web.money.utilisation import views as utilisation

urlpatterns = [
    path("utilisation/", utilisation.utilisation, name="utilisation"),
    path("utilisation/fleet/", drill_views.fleet, name="utilisation-fleet"),
    path("utilisation/fleet/<str:answer>.csv", drill_views.level_csv, name="utilisation-level-csv"),
    path("utilisation/requests/", request_views.wait_request_list, name="utilisation-requests"),
    path("utilisation/<str:chart>.csv", utilisation.utilisation_csv, name="utilisation-csv"),
    path("chargeback/", chargeback.chargeback, name="chargeback"),
    path("chargeback/rates/", rate_card.rate_card, name="rate-card"),
    path("chargeback/cost-centres/", centre_views.cost_centres, name="cost-centres"),
    path("chargeback/cost-centres/split/", centre_views.cost_centre_split, name="cost-centre-split"),
    path("chargeback/cost-centres/import/", import_page.cost_centre_import, name="cost-centre-import"),
    path("chargeback/cost-centre/<path:code>/", centre_views.cost_centre, name="cost-centre"),
    path("chargeback/budgets/", budgets.budgets, name="budgets"),
    path("chargeback/<str:month>/export/", exports.export, name="export"),
    path("chargeback/<str:month>/days.csv", overview_files.days_csv, name="chargeback-days"),
    path("chargeback/<str:month>/changes.csv", overview_files.changes_csv, name="chargeback-changes"),
    path("chargeback/adjustments/", adjustment_pages.adjustments, name="adjustments"),
    path("chargeback/adjustments/new/", adjustment_pages.new_adjustment, name="adjustment-new"),
    path("chargeback/adjustments/<slug:number>/", adjustment_pages.adjustment, name="adjustment"),
    path("chargeback/settings/", billing_settings.billing_settings, name="billing-settings"),
    path("chargeback/settings/showback/", showback.showback, name="showback"),
    path("chargeback/statements/", cost_centre_statements.statement_list, name="cost-centre-statements"),
    path(
        "chargeback/statements/<path:number>/",
        cost_centre_statements.statement_page,
        name="cost-centre-statement",
    ),
    path("chargeback/unusual/<int:pk>/", unusual_spend.explain, name="unusual-spend"),
    path("chargeback/<str:month>/idle/", idle_payer.idle_payer, name="idle-payer"),
    path("chargeback/rows/", charge_tree.charge_tree_rows, name="charge-tree-rows"),
    path("chargeback/lines/", charge_lines.charge_lines_page, name="charge-lines"),
    path("chargeback/lines/<int:pk>/", charge_line.charge_line_page, name="charge-line"),
    path("chargeback/<str:month>/close/", month_close.month_close, name="month-close"),
]
