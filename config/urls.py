"""Every URL of the site."""

from django.urls import include, path

urlpatterns = [
    path("", include("sandboxes.urls")),
]
