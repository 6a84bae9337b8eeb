"""Find units for an ask: available units, limits of quota and hardware, and the best hosts."""
