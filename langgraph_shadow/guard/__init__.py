"""Breaks: found before they are sent, named, priced and, where it is safe, repaired."""
