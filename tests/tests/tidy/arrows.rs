//! Which crate may depend on which: ARCHITECTURE.md's table, held to the manifests.

use std::collections::{BTreeMap, BTreeSet};

use crate::files;

/// Members of the workspace, by package name: folder and manifest.
fn members() -> BTreeMap<String, (String, String)> {
    let manifest = files::read("Cargo.toml");
    let (_, rest) = manifest.split_once("members = [").unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(|folder| {
            let own = files::read(&format!("{folder}/Cargo.toml"));
            let (_, rest) = own.split_once("name = \"").unwrap();
            let name = rest.split('"').next().unwrap().to_owned();
            (name, (folder.to_owned(), own))
        })
        .collect()
}

/// Returns the members that a section of a manifest names.
fn section(manifest: &str, name: &str, members: &BTreeSet<String>) -> BTreeSet<String> {
    let Some((_, rest)) = manifest.split_once(&format!("\n[{name}]\n")) else {
        return BTreeSet::new();
    };
    rest.lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|package| members.contains(*package))
        .map(str::to_owned)
        .collect()
}

/// Returns what the table under "## Dependencies" allows: package, and the packages that it may use.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let page = files::read("ARCHITECTURE.md");
    let (_, rest) = page.split_once("\n## Dependencies\n").unwrap();
    let names = |cell: &str| -> BTreeSet<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    rest.lines()
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').collect();
            assert_eq!(cells.len(), 2, "{line}");
            (names(cells[0]).pop_first().unwrap(), names(cells[1]))
        })
        .collect()
}

#[test]
fn crates_depend_on_each_other_as_the_table_says() {
    let members = members();
    let names: BTreeSet<String> = members.keys().cloned().collect();
    let mut found = BTreeMap::new();
    for (name, (_, manifest)) in &members {
        let mut used = section(manifest, "dependencies", &names);
        used.append(&mut section(manifest, "build-dependencies", &names));
        found.insert(name.clone(), used);
    }
    let table = table();
    for (name, used) in &found {
        let row: String = used.iter().map(|it| format!("`{it}` ")).collect();
        assert_eq!(
            table.get(name),
            Some(used),
            "ARCHITECTURE.md's row of {name} should be: | `{name}` | {}|",
            if row.is_empty() {
                "– ".to_owned()
            } else {
                row
            }
        );
    }
    assert_eq!(
        table.len(),
        found.len(),
        "rows of packages that are not there"
    );
}

#[test]
fn no_member_outside_of_tests_depends_on_the_test_harness() {
    let members = members();
    let names: BTreeSet<String> = members.keys().cloned().collect();
    for (name, (folder, manifest)) in &members {
        if !folder.starts_with("tests") {
            let used = section(manifest, "dependencies", &names);
            assert!(!used.contains("tests"), "{name}");
        }
    }
}
