"""What every package needs and none owns: types, errors, files, settings, hashes."""
