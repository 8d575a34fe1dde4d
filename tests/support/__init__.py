"""What several test files share: ``from support import pages``. Processes that tests spawn find it as well."""
