"""An HTTP server with the API that existing clients speak, and a page that shows blocks being written."""
