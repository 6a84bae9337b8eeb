"""Every page: the work of people who ask for GPUs, and the management of the pool."""

from portal.web import manage_urls, organisation_urls, work_urls

urlpatterns = [*work_urls.urlpatterns, *manage_urls.urlpatterns, *organisation_urls.urlpatterns]
