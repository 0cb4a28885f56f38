"""Run folders and sweeps as a page in the browser: read here, drawn by Bokeh, in one file or live."""
