"""The way of a message."""

from relay.settings import Route, Settings


def route_for(settings: Settings, address: str) -> Route | None:
    domain = address.rpartition("@")[2].lower()
    for route in settings.routes:
        if domain in route.domains or "*" in route.domains:
            return route
    return None
