"""Run the periodic work of the portal: stop idle notebooks, delete expired rows."""
