UCC: str
UCX: str
UCC_BUNDLED: bool
UCC_PREFIX: str
UCX_PREFIX: str
