//! What code, tests and documents cite of `docs/spec` is there.

use std::collections::BTreeSet;

use crate::files;

/// Returns the ids at the beginning of table rows: `| M2.13 | …`.
fn rows(page: &str, letter: char) -> BTreeSet<String> {
    page.lines()
        .filter_map(|line| line.strip_prefix("| "))
        .filter_map(|line| line.split(' ').next())
        .filter(|id| {
            id.strip_prefix(letter)
                .is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
        })
        .map(str::to_owned)
        .collect()
}

/// Returns the numbers of headings: `## 4 Metrics`, `### §2.3b Eviction`.
fn sections(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter_map(|line| line.trim_start_matches('#').trim().split(' ').next())
        .map(|number| number.trim_start_matches('§').to_owned())
        .filter(|number| number.starts_with(|it: char| it.is_ascii_digit()))
        .collect()
}

/// Returns the numbers of the list's items: `23. **…`. Fails unless they are 1, 2, … without a gap.
fn items(page: &str) -> BTreeSet<String> {
    let numbers: Vec<String> = page
        .lines()
        .filter_map(|line| line.split_once(". **"))
        .map(|(number, _)| number.to_owned())
        .filter(|number| number.bytes().all(|it| it.is_ascii_digit()))
        .collect();
    let expected: Vec<String> = (1..=numbers.len()).map(|it| it.to_string()).collect();
    assert_eq!(numbers, expected, "numbers of the invariants");
    numbers.into_iter().collect()
}

/// Returns what follows each occurrence of a word in a line, where the word stands by itself.
fn after<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> + 'a {
    line.match_indices(word).filter_map(move |(at, _)| {
        let before = line[..at].chars().next_back();
        before
            .is_none_or(|it| !it.is_alphanumeric() && it != '_')
            .then(|| &line[at + word.len()..])
    })
}

/// Returns the numbers of a list as `§2.3, 2.3b and 2.4`, `§6, §8`, `1, 2, 5–7`.
fn numbers(text: &str) -> Vec<String> {
    let mut numbers = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.strip_prefix('§').unwrap_or(rest);
        let end = rest
            .find(|it: char| !it.is_ascii_alphanumeric() && it != '.')
            .unwrap_or(rest.len());
        let number = rest[..end].trim_end_matches('.');
        if !number.starts_with(|it: char| it.is_ascii_digit())
            || number.matches(|it: char| it.is_ascii_alphabetic()).count() > 1
        {
            return numbers;
        }
        numbers.push(number.to_owned());
        rest = &rest[end..];
        let Some(next) = [", ", " and ", "–", " to "]
            .iter()
            .find_map(|separator| rest.strip_prefix(separator))
        else {
            return numbers;
        };
        rest = next;
    }
}

/// Files whose texts are examined. CHANGELOG.md speaks of what was, and this file of what is wrong.
fn citing() -> Vec<(String, String)> {
    let mut sources = files::sources(&["rs", "md", "toml", "yaml", "sh", "c", "txt"]);
    sources.retain(|(path, _)| {
        path != "CHANGELOG.md"
            && path != "tests/tests/tidy/citations.rs"
            && !path.contains("/data/")
    });
    sources
}

#[test]
fn every_id_that_is_cited_is_on_a_page_of_the_specification() {
    let mechanisms = files::read("docs/spec/mechanisms.md");
    let rows_of_papers = rows(&mechanisms, 'M');
    let contradictions = rows(&mechanisms, 'C');
    assert_eq!(rows_of_papers.len(), 74);
    assert_eq!(contradictions.len(), 22);
    let invariants = items(&files::read("docs/spec/invariants.md"));
    assert!(invariants.len() > 20);
    let pages = [
        ("mechanisms §", sections(&mechanisms)),
        (
            "contracts §",
            sections(&files::read("docs/spec/contracts.md")),
        ),
        (
            "workloads §",
            sections(&files::read("docs/spec/workloads.md")),
        ),
    ];
    let mut problems = Vec::new();
    for (path, text) in citing() {
        for (number, line) in (1..).zip(text.lines()) {
            let mut report = |what: &str| problems.push(format!("{path}:{number}: {what}"));
            for paper in ["M1.", "M2.", "M3.", "M4."] {
                for rest in after(line, paper) {
                    let row: String = rest.chars().take_while(char::is_ascii_digit).collect();
                    let id = format!("{paper}{row}");
                    if !row.is_empty() && !rows_of_papers.contains(&id) {
                        report(&id);
                    }
                }
            }
            for open in ["(C", ", C"] {
                for rest in line.split(open).skip(1) {
                    let id: String = rest.chars().take_while(char::is_ascii_digit).collect();
                    let ends = rest[id.len()..].starts_with([')', ',']);
                    if !id.is_empty() && ends && !contradictions.contains(&format!("C{id}")) {
                        report(&format!("C{id}"));
                    }
                }
            }
            for (page, sections) in &pages {
                for rest in after(line, page) {
                    let cited = numbers(rest);
                    if cited.is_empty() {
                        report(&format!("{page}{rest}"));
                    }
                    for section in cited.iter().filter(|it| !sections.contains(*it)) {
                        report(&format!("{page}{section}"));
                    }
                }
            }
            for word in ["invariant ", "invariants ", "Invariant ", "Invariants "] {
                for rest in after(line, word) {
                    for cited in numbers(rest).iter().filter(|it| !invariants.contains(*it)) {
                        report(&format!("{word}{cited}"));
                    }
                }
            }
            // A document that is not in the repository.
            let lower = line.to_lowercase();
            for foreign in [
                "papers",
                "design",
                "workloads",
                "data-plane",
                "gpu-sharing",
                "ecosystem",
            ] {
                for rest in after(&lower, foreign) {
                    let rest = rest.trim_start_matches([':', ' ']);
                    let is_own = foreign == "workloads" && rest.starts_with('§');
                    let rest = rest.trim_start_matches('§');
                    let cited = numbers(rest);
                    let is_count = cited
                        .first()
                        .is_some_and(|number| rest[number.len()..].starts_with(" %"));
                    if !cited.is_empty() && !is_own && !is_count {
                        report(&format!("{foreign} {}: cite docs/spec", cited.join(", ")));
                    }
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_path_that_a_document_names_exists() {
    let mut problems = Vec::new();
    for (document, text) in files::sources(&["md"]) {
        if document == "CHANGELOG.md" {
            continue;
        }
        for name in text.split('`').skip(1).step_by(2) {
            let top = name.split('/').next().unwrap();
            let is_path = name.contains('/')
                && [
                    "activator-ext",
                    "annotations",
                    "dashboards",
                    "docs",
                    "gpu-sidecar",
                    "image",
                    "manifests",
                    "policy",
                    "proxy",
                    "queue-proxy",
                    "tests",
                    "weir",
                ]
                .contains(&top)
                && name
                    .chars()
                    .all(|it| it.is_ascii_alphanumeric() || "/_.-".contains(it));
            if is_path && !files::root().join(name).exists() {
                problems.push(format!("{document}: {name}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn lists_of_numbers_are_read_whole() {
    assert_eq!(numbers("2.3, 2.3b)"), ["2.3", "2.3b"]);
    assert_eq!(numbers("6, §8."), ["6", "8"]);
    assert_eq!(numbers("2 and 5, from above"), ["2", "5"]);
    assert!(numbers("holds").is_empty());
}
