//! Lexer that splits a template into text and actions, and actions into tokens.

use super::ParseError;

/// A piece of a template: text or an action.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece<'a> {
    Text(&'a str),
    /// The tokens between `{{` and `}}`, of which there is at least one.
    Action {
        offset: usize,
        tokens: Vec<Token<'a>>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token<'a> {
    /// Offset in the template, in bytes.
    pub offset: usize,
    /// Whether the token follows the previous one without white space.
    pub glued: bool,
    pub kind: TokenKind<'a>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind<'a> {
    Text(String),
    Integer(i64),
    Float(f64),
    Word(&'a str),
    /// A field path: `.A.B`, or `.` or `$` alone.
    Fields(Vec<Name>),
    Pipe,
    Open,
    Close,
}

/// The name of a field or method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// Offset in the template, in bytes.
    pub offset: usize,
    pub text: String,
}

impl Token<'_> {
    pub(super) fn word(&self) -> Option<&str> {
        match self.kind {
            TokenKind::Word(word) => Some(word),
            _ => None,
        }
    }
}

/// Returns an error at a byte offset of `text`.
pub(super) fn error_at(text: &str, offset: usize, why: impl Into<String>) -> ParseError {
    let before = &text[..offset.min(text.len())];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    ParseError {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        why: why.into(),
    }
}

pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error<T>(&self, offset: usize, why: &str) -> Result<T, ParseError> {
        Err(error_at(self.text, offset, why))
    }

    /// Splits the whole template.
    pub(super) fn pieces(mut self) -> Result<Vec<Piece<'a>>, ParseError> {
        let mut pieces = Vec::new();
        let mut trim_next = false;
        while self.at < self.text.len() {
            let start = self.rest().find("{{").unwrap_or_else(|| self.rest().len());
            let mut text = &self.rest()[..start];
            if std::mem::take(&mut trim_next) {
                text = text.trim_ascii_start();
            }
            self.at += start;
            let offset = self.at;
            let trims_before = is_trim_left(self.rest());
            if trims_before {
                text = text.trim_ascii_end();
            }
            if !text.is_empty() {
                pieces.push(Piece::Text(text));
            }
            if self.rest().is_empty() {
                break;
            }
            self.at += if trims_before { 3 } else { 2 };
            let tokens = if self.rest().trim_ascii_start().starts_with("/*") {
                trim_next = self.comment(offset)?;
                continue;
            } else {
                self.action(offset, &mut trim_next)?
            };
            if tokens.is_empty() {
                return self.error(offset, "a value is missing");
            }
            pieces.push(Piece::Action { offset, tokens });
        }
        Ok(pieces)
    }

    /// Skips a comment. Returns whether it trims the text after it.
    fn comment(&mut self, offset: usize) -> Result<bool, ParseError> {
        let Some(end) = self.rest().find("*/") else {
            return self.error(offset, "this comment is not closed");
        };
        self.at += end + 2;
        for (close, trims) in [("}}", false), (" -}}", true)] {
            if self.rest().starts_with(close) {
                self.at += close.len();
                return Ok(trims);
            }
        }
        self.error(offset, "a comment must be the whole action")
    }

    fn action(&mut self, start: usize, trim_next: &mut bool) -> Result<Vec<Token<'a>>, ParseError> {
        let mut tokens = Vec::new();
        let mut glued = false;
        loop {
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                return self.error(start, "this action is not closed");
            };
            if rest.starts_with("}}") {
                self.at += 2;
                return Ok(tokens);
            }
            if first.is_ascii_whitespace() {
                if rest[1..].starts_with("-}}") {
                    self.at += 4;
                    *trim_next = true;
                    return Ok(tokens);
                }
                self.at += 1;
                glued = false;
                continue;
            }
            let offset = self.at;
            let kind = self.token(first)?;
            tokens.push(Token {
                offset,
                glued,
                kind,
            });
            glued = true;
        }
    }

    fn token(&mut self, first: char) -> Result<TokenKind<'a>, ParseError> {
        let offset = self.at;
        let single = |kind| Some(kind);
        let kind = match first {
            '|' => single(TokenKind::Pipe),
            '(' => single(TokenKind::Open),
            ')' => single(TokenKind::Close),
            _ => None,
        };
        if let Some(kind) = kind {
            self.at += 1;
            return Ok(kind);
        }
        match first {
            '"' | '`' => self.quoted(first),
            '.' if !self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => self.fields(),
            '$' => {
                self.at += 1;
                if self.rest().starts_with(|c: char| is_word(c)) {
                    return self.error(self.at, "variables are not supported; allowed: $ alone");
                }
                if self.rest().starts_with('.') {
                    return self.fields();
                }
                Ok(TokenKind::Fields(Vec::new()))
            }
            '0'..='9' | '-' | '+' | '.' => {
                let length = self
                    .rest()
                    .find(|c: char| !c.is_ascii_alphanumeric() && !".+-_".contains(c))
                    .unwrap_or_else(|| self.rest().len());
                let number = &self.rest()[..length];
                self.at += length;
                if let Ok(value) = number.parse() {
                    return Ok(TokenKind::Integer(value));
                }
                match number.parse::<f64>() {
                    Ok(value) if value.is_finite() => Ok(TokenKind::Float(value)),
                    _ => self.error(offset, "invalid decimal number"),
                }
            }
            c if is_word(c) => {
                let length = self
                    .rest()
                    .find(|c: char| !is_word(c) && !c.is_ascii_digit())
                    .unwrap_or_else(|| self.rest().len());
                let word = &self.rest()[..length];
                self.at += length;
                Ok(TokenKind::Word(word))
            }
            _ => self.error(offset, "unexpected character"),
        }
    }

    fn fields(&mut self) -> Result<TokenKind<'a>, ParseError> {
        let offset = self.at;
        let mut fields = Vec::new();
        while let Some(rest) = self.rest().strip_prefix('.') {
            let length = rest
                .find(|c: char| !is_word(c) && !c.is_ascii_digit())
                .unwrap_or(rest.len());
            if length == 0 {
                if fields.is_empty() && !rest.starts_with('.') {
                    self.at += 1;
                    return Ok(TokenKind::Fields(fields));
                }
                return self.error(offset, "the name of a field is missing");
            }
            fields.push(Name {
                offset: self.at + 1,
                text: rest[..length].to_owned(),
            });
            self.at += 1 + length;
        }
        Ok(TokenKind::Fields(fields))
    }

    fn quoted(&mut self, quote: char) -> Result<TokenKind<'a>, ParseError> {
        let offset = self.at;
        let mut text = String::new();
        let mut chars = self.rest()[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at += 1 + at + 1;
                    return Ok(TokenKind::Text(text));
                }
                '\n' if quote == '"' => break,
                '\\' if quote == '"' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, c @ ('"' | '\\'))) => text.push(c),
                    _ => {
                        return self.error(
                            offset + 1 + at,
                            "unknown escape; allowed: \\\" \\\\ \\n \\t",
                        );
                    }
                },
                c => text.push(c),
            }
        }
        self.error(offset, "this text is not closed")
    }
}

/// Returns whether an action trims the text before it: `{{-` followed by white space.
fn is_trim_left(action: &str) -> bool {
    action
        .strip_prefix("{{-")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_whitespace()))
}

fn is_word(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}
