//! Files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the repository's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Returns a file's text, by its path in the repository.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns path and text of every file with one of the extensions, sorted by path. Build outputs, hidden folders but `.ci` and inputs of tests, which are
/// not ours to word, are left out.
pub(crate) fn sources(extensions: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut sources = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                let is_ours = !name.starts_with('.') || name == ".ci" || name == ".github";
                if is_ours && !matches!(name, "target" | "node_modules" | "corpus") {
                    folders.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|it| extensions.iter().any(|extension| it == *extension))
            {
                let short = path.strip_prefix(&root).unwrap().to_str().unwrap();
                sources.push((short.to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    sources.sort();
    sources
}
