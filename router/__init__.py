"""The router: where is most of a prompt's prefix cached, and is it worth waiting there."""
