"""From samples to rates of access: windows, cooling, changes of behaviour, posterior means."""
