"""Known vulnerabilities of the packages in an image, from its SBOM and a database on disk; nothing is fetched."""
