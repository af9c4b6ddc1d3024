"""Claims and experiments of chapters/06a_kernel_machine.md."""
