"""Optional extras; the core never imports them."""
