"""Composes the parts: settings, routes, server entry points. Nothing imports it."""
