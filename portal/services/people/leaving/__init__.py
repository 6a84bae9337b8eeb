"""Settle the work of people whose accounts are closed, by the policy of the installation."""
