//! Reader of a TOML document by keys, which finds all problems at once, each with its line.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// An invalid setting in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Line number in the file, from 1.
    pub line: usize,
    /// Key with its table, such as `tokens.window`; empty for the file as a whole.
    pub key: String,
    /// Description of the problem and the allowed values.
    pub text: String,
}

/// Text of the document and the problems found in it.
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

    /// Records a problem at this byte range.
    pub(crate) fn wrong(&self, at: Range<usize>, key: impl Into<String>, text: impl Into<String>) {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        self.problems.borrow_mut().push(Problem {
            line,
            key: key.into(),
            text: text.into(),
        });
    }

    /// Returns all problems, ordered by line.
    pub(crate) fn problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort();
        problems
    }
}

/// A table that is being read. Keys which were not requested before [`Table::end`] are reported as unknown.
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

    /// Returns the key with its table, such as `tokens.window`.
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// Returns the byte range of the table.
    pub(crate) fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Returns a key's value and marks the key as known.
    fn find(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'d>>> {
        self.known.borrow_mut().push(key);
        self.table?.get(key)
    }

    /// Returns the byte range of a key's value, if it is present.
    pub(crate) fn place(&self, key: &str) -> Option<Range<usize>> {
        self.table?.get(key).map(Spanned::span)
    }

    /// Records that a key's value is invalid.
    pub(crate) fn wrong(&self, key: &str, text: impl Into<String>) {
        let at = self.place(key).unwrap_or_else(|| self.at());
        self.document.wrong(at, self.path(key), text);
    }

    /// Returns the value that `read` parses from the text of a key's value; records a problem when it is invalid. Numbers are
    /// passed as they are written.
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
                self.wrong(
                    key,
                    format!("has type {kind}; a string or a number is needed"),
                );
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

    /// Returns a table within this one; an empty one when it is missing.
    pub(crate) fn table(&self, key: &'static str) -> Self {
        let path = self.path(key);
        match self.find(key) {
            None => Self::new(self.document, path, self.at(), None),
            Some(value) => {
                let table = value.get_ref().as_table();
                if table.is_none() {
                    self.wrong(key, "is not a table");
                }
                Self::new(self.document, path, value.span(), table)
            }
        }
    }

    /// Returns the tables of an array of tables.
    pub(crate) fn tables(&self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.find(key) else {
            return Vec::new();
        };
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(key, format!("is not an array of tables: use [[{key}]]"));
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
                    .wrong(value.span(), self.path(key), "is not a table"),
            }
        }
        tables
    }

    /// Records a problem for each key that was not requested.
    pub(crate) fn end(self) {
        let known = self.known.borrow();
        for (key, _) in self.table.into_iter().flatten() {
            if !known.contains(&key.get_ref().as_ref()) {
                let path = self.path(key.get_ref());
                let mut names = known.clone();
                names.sort_unstable();
                let allowed = names.join(", ");
                let text = format!("unknown key; allowed: {allowed}");
                self.document.wrong(key.span(), path, text);
            }
        }
    }
}
