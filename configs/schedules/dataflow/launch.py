"""What the Flex Template's launcher runs."""

from pipelines.reconcile import main

main()
