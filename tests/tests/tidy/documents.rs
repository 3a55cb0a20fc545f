//! Tables of documents, held to the code.

use std::collections::BTreeSet;

use crate::files;

#[test]
fn the_page_of_annotations_has_a_row_for_each_key() {
    let page = files::read("docs/annotations.md");
    let listed: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `weir.dev/"))
        .filter_map(|line| line.split('`').next())
        .collect();
    let keys: BTreeSet<&str> = annotations::KEYS.iter().map(|key| key.name).collect();
    assert_eq!(listed, keys);
}

#[test]
fn every_document_names_its_reader_first() {
    let mut problems = Vec::new();
    for (path, text) in files::sources(&["md"]) {
        // A README of the repository and a change log are for everyone; templates and runbooks are forms.
        let is_exempt = matches!(&*path, "README.md" | "CHANGELOG.md")
            || path.starts_with(".github/")
            || path.starts_with("docs/runbooks/");
        if is_exempt {
            continue;
        }
        let first = text
            .lines()
            .skip(1)
            .find(|line| !line.is_empty() && !line.starts_with("<!--"));
        if !first.is_some_and(|line| line.starts_with("For ")) {
            problems.push(path);
        }
    }
    assert!(
        problems.is_empty(),
        "no \"For …:\" in the first line of {problems:?}"
    );
}
