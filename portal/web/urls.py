"""Define the URL patterns of all pages."""

from portal.web.calendar import urls as calendar
from portal.web.fleet import urls as fleet
from portal.web.gpu_request import urls as gpu_request
from portal.web.home import urls as home
from portal.web.money import urls as money
from portal.web.people import urls as people
from portal.web.work import urls as work

urlpatterns = [
    *home.urlpatterns,
    *gpu_request.urlpatterns,
    *work.urlpatterns,
    *calendar.urlpatterns,
    *fleet.urlpatterns,
    *money.urlpatterns,
    *people.urlpatterns,
]
