// A page opened from a file may not read the other pages, so search shows its results without an excerpt there.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
