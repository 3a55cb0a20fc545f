//! Walks a TOML document key by key, so that each problem has its line and all are found at once.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Something in the file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// The key with its table, as `tokens.window`; empty: the file as a whole.
    pub key: String,
    /// What is wrong, and what is allowed.
    pub text: String,
}

/// The document's text, and what was found wrong in it.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    text: &'a str,
    problems: RefCell<Vec<Problem>>,
}

impl<'a> Document<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self {
            text,
            problems: RefCell::new(Vec::new()),
        }
    }

    /// Notes a problem at a place.
    pub(crate) fn wrong(&self, at: Range<usize>, key: impl Into<String>, text: impl Into<String>) {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        self.problems.borrow_mut().push(Problem {
            line,
            key: key.into(),
            text: text.into(),
        });
    }

    /// All problems in the order of their lines.
    pub(crate) fn problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort();
        problems
    }
}

/// A table that is being read. What of it was not asked for when it is [`Table::end`]ed is not known.
#[derive(Debug)]
pub(crate) struct Table<'a, 'd> {
    document: &'a Document<'d>,
    name: String,
    at: Range<usize>,
    table: Option<&'a DeTable<'d>>,
    known: RefCell<Vec<&'static str>>,
}

impl<'a, 'd> Table<'a, 'd> {
    pub(crate) fn new(
        document: &'a Document<'d>,
        name: impl Into<String>,
        at: Range<usize>,
        table: Option<&'a DeTable<'d>>,
    ) -> Self {
        Self {
            document,
            name: name.into(),
            at,
            table,
            known: RefCell::default(),
        }
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// Where the table stands.
    pub(crate) fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    fn find(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'d>>> {
        self.known.borrow_mut().push(key);
        self.table?.get(key)
    }

    /// The place of a key's value, if it is there.
    pub(crate) fn place(&self, key: &str) -> Option<Range<usize>> {
        self.table?.get(key).map(Spanned::span)
    }

    /// Notes that a key's value cannot be used.
    pub(crate) fn wrong(&self, key: &str, text: impl Into<String>) {
        let at = self.place(key).unwrap_or_else(|| self.at());
        self.document.wrong(at, self.path(key), text);
    }

    /// A value that `read` takes from its text. Numbers are taken as they are written.
    pub(crate) fn value<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.find(key)?;
        let text = match value.get_ref() {
            DeValue::String(text) => text.as_ref().to_owned(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(flag) => flag.to_string(),
            other => {
                let kind = other.type_str();
                self.wrong(key, format!("is a {kind}; a string or a number is needed"));
                return None;
            }
        };
        match read(&text) {
            Ok(value) => Some(value),
            Err(allowed) => {
                self.wrong(key, format!("{text:?}: {allowed}"));
                None
            }
        }
    }

    /// A table in this one; an empty one where it is missing.
    pub(crate) fn table(&self, key: &'static str) -> Self {
        let path = self.path(key);
        match self.find(key) {
            None => Self::new(self.document, path, self.at(), None),
            Some(value) => {
                let table = value.get_ref().as_table();
                if table.is_none() {
                    self.wrong(key, "is no table");
                }
                Self::new(self.document, path, value.span(), table)
            }
        }
    }

    /// The tables of an array of tables.
    pub(crate) fn tables(&self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.find(key) else {
            return Vec::new();
        };
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(key, format!("is no array of tables: write [[{key}]]"));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for value in array.iter() {
            match value.get_ref().as_table() {
                Some(table) => tables.push(Self::new(
                    self.document,
                    self.path(key),
                    value.span(),
                    Some(table),
                )),
                None => self
                    .document
                    .wrong(value.span(), self.path(key), "is no table"),
            }
        }
        tables
    }

    /// Notes each key that nobody has asked for.
    pub(crate) fn end(self) {
        let known = self.known.borrow();
        for (key, _) in self.table.into_iter().flatten() {
            if !known.contains(&key.get_ref().as_ref()) {
                let path = self.path(key.get_ref());
                let mut names = known.clone();
                names.sort_unstable();
                let allowed = names.join(", ");
                let text = format!("is no key here; allowed: {allowed}");
                self.document.wrong(key.span(), path, text);
            }
        }
    }
}
