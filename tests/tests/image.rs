//! Checks of `image/build` before it builds.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

/// Folders in which a tool is searched.
const FOLDERS: [&str; 3] = ["/usr/bin", "/bin", "/usr/local/bin"];

#[test]
fn every_missing_tool_is_named_before_the_build() {
    let work = tempfile::tempdir().unwrap();
    let built = work.path().join("built");
    // This stand-in leaves a mark when it is called: nothing may be built.
    let cargo = work.path().join("cargo");
    fs::write(&cargo, format!("#!/bin/sh\n: >{}\n", built.display())).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    for tool in ["bash", "sh", "dirname", "sed", "head", "cut", "tar"] {
        let found = FOLDERS.iter().map(|folder| Path::new(folder).join(tool));
        let found = found.into_iter().find(|path| path.exists());
        symlink(found.expect(tool), work.path().join(tool)).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/build");
    let output = Command::new(work.path().join("bash"))
        .arg(script)
        .arg(work.path().join("out"))
        .env_clear()
        .env("PATH", work.path())
        .env("CA_CERTIFICATES", work.path().join("roots"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for missing in [
        "rustc",
        "jq",
        "gzip",
        "readelf",
        "cargo-cyclonedx",
        "make",
        "cc",
        "roots",
    ] {
        let is_named = said
            .lines()
            .any(|line| line.starts_with("image/build: missing: ") && line.contains(missing));
        assert!(is_named, "{missing}: {said}");
    }
    assert!(!said.contains("missing: sed"), "{said}");
    assert!(!built.exists(), "something was built");
}
