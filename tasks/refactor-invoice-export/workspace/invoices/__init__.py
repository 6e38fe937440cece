"""Invoices and their exports."""
