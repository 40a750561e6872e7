"""Where the server says how it is."""

from django.urls import path

from sandboxes import views

urlpatterns = [
    path("health", views.health, name="health"),
    path("live", views.live, name="live"),
    path("internal/status", views.status, name="status"),
]
