//! The language of comments, documentation and names.
//!
//! Budgets are near what std, tokio, quinn and linkerd2-proxy have, counted per 10,000 words of comments in the same way.

use crate::files;

/// Occurrences allowed per 10,000 words of comments, in Rust files and in documents alike.
const AT_MOST: [(&str, &[&str], usize); 3] = [
    ("tell, told", &["tell", "tells", "telling", "told"], 4),
    (
        "whoever, nobody, somebody",
        &[
            "whoever",
            "nobody",
            "somebody",
            "anybody",
            "everybody",
            "someone",
            "anyone",
        ],
        2,
    ),
    ("who", &["who"], 2),
];

/// Occurrences of "returns" wanted per 10,000 words of comments in Rust files.
const RETURNS_AT_LEAST: usize = 20;

/// Lines printed of a budget that is exceeded.
const WORST: usize = 40;

/// Public items of which three words say all.
const SHORT_DOCS_ALLOWED: [&str; 0] = [];

/// Returns the words of a text in lower case.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|it: char| !it.is_alphanumeric() && !matches!(it, '_' | '\'' | '’' | '-'))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// Returns the comment on a line of Rust, without its slashes.
fn comment(line: &str) -> Option<&str> {
    let trimmed = line.trim_start();
    if let Some(rest) = trimmed.strip_prefix("//") {
        return Some(rest.trim_start_matches(['/', '!']));
    }
    let (code, rest) = line.split_once(" // ")?;
    code.ends_with([';', '{', ',', ')', '}']).then_some(rest)
}

/// Lines of text with where they are.
fn comments() -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (path, text) in files::sources(&["rs"]) {
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(comment) = comment(line) {
                lines.push((format!("{path}:{number}"), comment.to_owned()));
            }
        }
    }
    lines
}

/// Lines of documents, code blocks left out.
fn documents() -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (path, text) in files::sources(&["md"]) {
        let mut is_code = false;
        for (number, line) in (1..).zip(text.lines()) {
            is_code ^= line.trim_start().starts_with("```");
            if !is_code {
                lines.push((format!("{path}:{number}"), line.to_owned()));
            }
        }
    }
    lines
}

fn hold_budgets(lines: &[(String, String)]) {
    let total: usize = lines.iter().map(|(_, text)| words(text).count()).sum();
    let mut problems = String::new();
    for (name, forms, allowed) in AT_MOST {
        let hits: Vec<_> = lines
            .iter()
            .filter(|(_, text)| words(text).any(|word| forms.contains(&word.as_str())))
            .collect();
        if hits.len() * 10_000 > allowed * total {
            problems += &format!(
                "{name}: {} in {total} words, allowed {allowed} per 10,000\n",
                hits.len()
            );
            for (place, text) in hits.iter().take(WORST) {
                problems += &format!("    {place}:{text}\n");
            }
        }
    }
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn comments_keep_to_the_budget_of_words() {
    let comments = comments();
    hold_budgets(&comments);
    let total: usize = comments.iter().map(|(_, text)| words(text).count()).sum();
    let returns = comments
        .iter()
        .flat_map(|(_, text)| words(text))
        .filter(|word| word == "returns")
        .count();
    assert!(
        returns * 10_000 >= RETURNS_AT_LEAST * total,
        "\"returns\": {returns} in {total} words of comments, wanted {RETURNS_AT_LEAST} per 10,000"
    );
}

#[test]
fn documents_keep_to_the_budget_of_words() {
    hold_budgets(&documents());
}

#[test]
fn no_function_is_named_by_a_question() {
    let mut problems = Vec::new();
    for (path, text) in files::sources(&["rs"]) {
        for (number, line) in (1..).zip(text.lines()) {
            let Some((before, name)) = line.split_once("fn ") else {
                continue;
            };
            let is_declaration = before.is_empty() || before.ends_with(' ');
            let begins = ["who_", "what_", "whoever_", "nobody_"]
                .iter()
                .any(|question| name.starts_with(question));
            if is_declaration && begins && comment(line).is_none() {
                problems.push(format!("{path}:{number}: {}", name.trim_end_matches(" {")));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A doc comment with the first line of what it documents.
struct Doc {
    place: String,
    text: String,
    item: String,
}

fn docs() -> Vec<Doc> {
    let mut docs = Vec::new();
    for (path, source) in files::sources(&["rs"]) {
        let mut current: Option<(usize, String)> = None;
        for (number, line) in (1..).zip(source.lines()) {
            let line = line.trim();
            if let Some(text) = line.strip_prefix("///") {
                let (_, collected) = current.get_or_insert((number, String::new()));
                collected.push(' ');
                collected.push_str(text);
            } else if !line.starts_with("#[")
                && let Some((start, text)) = current.take()
            {
                docs.push(Doc {
                    place: format!("{path}:{start}"),
                    text,
                    item: line.to_owned(),
                });
            }
        }
    }
    docs
}

#[test]
fn no_doc_is_a_question_of_one_word() {
    let questions = [
        "which", "what", "who", "how", "where", "when", "why", "whether", "whose",
    ];
    let mut problems = Vec::new();
    for doc in docs() {
        let all: Vec<String> = words(&doc.text).collect();
        if all.len() == 1 && questions.contains(&all[0].as_str()) {
            problems.push(format!("{}:{} <- {}", doc.place, doc.text, doc.item));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn docs_of_public_items_have_more_than_three_words() {
    let mut problems = Vec::new();
    for doc in docs() {
        let is_public = doc.item.starts_with("pub ");
        if is_public
            && words(&doc.text).count() <= 3
            && !SHORT_DOCS_ALLOWED.contains(&doc.text.trim())
        {
            problems.push(format!("{}:{} <- {}", doc.place, doc.text, doc.item));
        }
    }
    assert!(
        problems.is_empty(),
        "{} docs say no more than a name:\n{}",
        problems.len(),
        problems.join("\n")
    );
}
