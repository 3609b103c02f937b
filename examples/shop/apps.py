"""Makes the shop an installed app, which is all a worker needs to find its handlers module."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """No models and no ready(): registration happens when the worker imports shop.handlers."""

    name = "examples.shop"
    label = "shop"
