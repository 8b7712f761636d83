"""Differential privacy: settings, mechanisms, sensitivities and accounting."""
