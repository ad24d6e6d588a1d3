"""Potsdam, Vaihingen and LoveDA: towns and country from the air, archives, and planted defects."""
