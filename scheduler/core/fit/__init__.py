"""Find units for an ask: which units are available, whether the ask fits within quota and hardware, which hosts are best."""
