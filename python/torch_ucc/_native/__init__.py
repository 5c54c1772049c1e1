"""What is compiled: UCX and UCC, the extension, and what a killed process leaves behind."""
