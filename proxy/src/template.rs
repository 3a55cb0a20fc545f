//! Request-log templates: the subset of Go's `text/template` that request logs use.
//!
//! | form | examples |
//! |---|---|
//! | fields, and methods without arguments | `{{.Request.Method}}` |
//! | methods with arguments | `{{.Request.Header.Get "X-Id"}}` |
//! | functions | `and eq ge gt html index js le len lt ne not or print println urlquery` |
//! | pipelines, parentheses | `{{.Request.Host \| js}}`, `{{js (.Request.Header.Get "X")}}` |
//! | conditions | `{{if …}} … {{else if …}} … {{else}} … {{end}}` |
//! | literals | `"text"`, `` `raw` ``, `12`, `1.5`, `true`, `nil` |
//! | trimming, comments | `{{- … -}}`, `{{/* … */}}` |
//!
//! Anything else is a parse error with line and column, and so are fields that do not exist (see `template::check`).
//! Errors that depend on the request, such as a missing cookie, occur when the template is executed, as in Go.
//!
//! Values are formatted as Go's `fmt` formats those of Knative's own queue-proxy. Only the memory addresses in
//! `.Request.Body` and `.Request.TLS` are made up.

mod check;
mod go;
mod lexer;
mod request;
mod run;
mod value;

use lexer::{Lexer, Name, Piece, Token, TokenKind};
pub use run::RunError;
pub use value::{Record, RevisionInfo};

/// Deepest nesting of parentheses and conditions.
const DEPTH_MAX: usize = 32;

/// A parsed and checked template of the request log.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    nodes: Vec<Node>,
}

/// The error of a template that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {why}")]
pub struct ParseError {
    /// Line of the error, counted from 1.
    pub line: usize,
    /// Column of the error in characters, counted from 1.
    pub column: usize,
    /// Description of the error, with the allowed forms.
    pub why: String,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Text(String),
    Output(Pipeline),
    /// Branches, as pairs of a condition and the guarded nodes, and the nodes of `{{else}}`.
    If(Vec<(Pipeline, Vec<Self>)>, Vec<Self>),
}

/// Commands, each of which gets the result of the previous one as its last argument.
#[derive(Debug, Clone, PartialEq)]
struct Pipeline(Vec<Command>);

/// An operand with its arguments.
#[derive(Debug, Clone, PartialEq)]
struct Command {
    /// Offset of the command in the template, in bytes.
    offset: usize,
    head: Operand,
    arguments: Vec<Operand>,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    Nil,
    /// Field path from the record; an empty path is the record itself.
    Fields(Vec<Name>),
    /// Field path from the result of a pipeline.
    Group(Box<Pipeline>, Vec<Name>),
    Function(Function),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    And,
    Eq,
    Ge,
    Gt,
    Html,
    Index,
    Js,
    Le,
    Len,
    Lt,
    Ne,
    Not,
    Or,
    Print,
    Println,
    UrlQuery,
}

impl Function {
    const ALL: [(&'static str, Self); 16] = [
        ("and", Self::And),
        ("eq", Self::Eq),
        ("ge", Self::Ge),
        ("gt", Self::Gt),
        ("html", Self::Html),
        ("index", Self::Index),
        ("js", Self::Js),
        ("le", Self::Le),
        ("len", Self::Len),
        ("lt", Self::Lt),
        ("ne", Self::Ne),
        ("not", Self::Not),
        ("or", Self::Or),
        ("print", Self::Print),
        ("println", Self::Println),
        ("urlquery", Self::UrlQuery),
    ];

    fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name)?;
        Some(found.1)
    }

    fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, known)| *known == self);
        found.map_or("", |found| found.0)
    }
}

impl Template {
    /// Parses a template. A line feed is appended if the text does not end with one.
    ///
    /// # Errors
    /// Returns an error if the text is malformed, uses an unsupported part of Go's language, or names a field that does
    /// not exist.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser {
            text,
            pieces: Lexer::new(text).pieces()?,
            at: 0,
            depth: 0,
        };
        let (mut nodes, end) = parser.nodes()?;
        if let Some(end) = end {
            return Err(parser.error(end, "{{else}} or {{end}} without a matching {{if}}"));
        }
        check::nodes(&nodes).map_err(|wrong| parser.error(wrong.offset, wrong.why))?;
        if !text.ends_with('\n') {
            nodes.push(Node::Text("\n".to_owned()));
        }
        Ok(Self { nodes })
    }
}

struct Parser<'a> {
    text: &'a str,
    pieces: Vec<Piece<'a>>,
    at: usize,
    depth: usize,
}

/// The action `{{else}}`, `{{else if …}}` or `{{end}}` that ends a list of nodes.
struct Closing {
    offset: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, offset: impl Into<usize>, why: impl Into<String>) -> ParseError {
        lexer::error_at(self.text, offset.into(), why)
    }

    /// Parses nodes up to the end of the text, or up to an action that ends a branch, which is not consumed.
    fn nodes(&mut self) -> Result<(Vec<Node>, Option<Closing>), ParseError> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.get(self.at) {
            match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text((*text).to_owned()));
                    self.at += 1;
                }
                Piece::Action { offset, tokens } => {
                    let (offset, tokens) = (*offset, tokens.clone());
                    let word = tokens.first().and_then(Token::word);
                    match word {
                        Some("end" | "else") => return Ok((nodes, Some(Closing { offset }))),
                        Some("if") => {
                            self.at += 1;
                            nodes.push(self.condition(offset, &tokens[1..])?);
                        }
                        Some(
                            word @ ("range" | "with" | "define" | "template" | "block" | "break"
                            | "continue"),
                        ) => {
                            return Err(self.error(
                                tokens[0].offset,
                                format!(
                                    "{word} is not supported; allowed: if, else, end and values"
                                ),
                            ));
                        }
                        _ => {
                            self.at += 1;
                            nodes.push(Node::Output(self.pipeline(offset, &tokens)?));
                        }
                    }
                }
            }
        }
        Ok((nodes, None))
    }

    /// Parses a condition, from the tokens after `{{if` up to its `{{end}}`.
    fn condition(&mut self, offset: usize, tokens: &[Token<'a>]) -> Result<Node, ParseError> {
        self.deeper(offset)?;
        let mut branches = Vec::new();
        let mut condition = self.pipeline(offset, tokens)?;
        loop {
            let (nodes, closing) = self.nodes()?;
            let Some(closing) = closing else {
                return Err(self.error(offset, "this {{if}} has no {{end}}"));
            };
            let Some(Piece::Action { tokens, .. }) = self.pieces.get(self.at) else {
                return Err(self.error(closing.offset, "expected an action"));
            };
            let tokens = tokens.clone();
            self.at += 1;
            branches.push((condition, nodes));
            match (tokens[0].word(), tokens.get(1)) {
                (Some("end"), None) => {
                    self.depth -= 1;
                    return Ok(Node::If(branches, Vec::new()));
                }
                (Some("else"), None) => {
                    let (otherwise, closing) = self.nodes()?;
                    let is_end = matches!(
                        self.pieces.get(self.at),
                        Some(Piece::Action { tokens, .. })
                            if tokens.len() == 1 && tokens[0].word() == Some("end")
                    );
                    if closing.is_none() || !is_end {
                        let offset = closing.map_or(offset, |closing| closing.offset);
                        return Err(self.error(offset, "expected {{end}} after {{else}}"));
                    }
                    self.at += 1;
                    self.depth -= 1;
                    return Ok(Node::If(branches, otherwise));
                }
                (Some("else"), Some(next)) if next.word() == Some("if") => {
                    condition = self.pipeline(closing.offset, &tokens[2..])?;
                }
                (_, next) => {
                    let offset = next.map_or(closing.offset, |next| next.offset);
                    return Err(self.error(offset, "unexpected token; allowed: if after else"));
                }
            }
        }
    }

    /// Parses all of `tokens` as a pipeline.
    fn pipeline(&mut self, offset: usize, tokens: &[Token<'a>]) -> Result<Pipeline, ParseError> {
        let mut rest = tokens;
        let pipeline = self.commands(offset, &mut rest)?;
        match rest.first() {
            None => Ok(pipeline),
            Some(token) => Err(self.error(token.offset, "unmatched closing parenthesis")),
        }
    }

    /// Parses commands up to the end of the action or to a closing parenthesis.
    fn commands(&mut self, offset: usize, rest: &mut &[Token<'a>]) -> Result<Pipeline, ParseError> {
        let mut commands = Vec::new();
        loop {
            let mut operands = Vec::new();
            let begin = rest.first().map_or(offset, |token| token.offset);
            while let Some(token) = rest.first() {
                if matches!(token.kind, TokenKind::Pipe | TokenKind::Close) {
                    break;
                }
                let operand = self.operand(rest)?;
                let is_function = matches!(operand, Operand::Function(_));
                if is_function && !operands.is_empty() {
                    return Err(self.error(
                        token.offset,
                        "a function must be the first operand of a command or be in parentheses",
                    ));
                }
                operands.push(operand);
            }
            let at = rest.first().map_or(offset, |token| token.offset);
            let mut operands = operands.into_iter();
            let Some(head) = operands.next() else {
                return Err(self.error(at, "a value is missing"));
            };
            let arguments: Vec<_> = operands.collect();
            let takes = matches!(&head, Operand::Function(_))
                || matches!(&head, Operand::Fields(fields) if !fields.is_empty())
                || matches!(&head, Operand::Group(_, fields) if !fields.is_empty());
            if !takes && (!arguments.is_empty() || !commands.is_empty()) {
                return Err(self.error(at, "only functions and methods take arguments"));
            }
            commands.push(Command {
                offset: begin,
                head,
                arguments,
            });
            match rest.first() {
                Some(token) if token.kind == TokenKind::Pipe => *rest = &rest[1..],
                _ => return Ok(Pipeline(commands)),
            }
        }
    }

    fn operand(&mut self, rest: &mut &[Token<'a>]) -> Result<Operand, ParseError> {
        let token = rest[0].clone();
        *rest = &rest[1..];
        Ok(match token.kind {
            TokenKind::Text(text) => Operand::Text(text),
            TokenKind::Integer(value) => Operand::Integer(value),
            TokenKind::Float(value) => Operand::Float(value),
            TokenKind::Fields(fields) => Operand::Fields(fields),
            TokenKind::Word("true") => Operand::Bool(true),
            TokenKind::Word("false") => Operand::Bool(false),
            TokenKind::Word("nil") => Operand::Nil,
            TokenKind::Word(word) => match Function::named(word) {
                Some(function) => Operand::Function(function),
                None => {
                    let known: Vec<_> = Function::ALL.iter().map(|(name, _)| *name).collect();
                    return Err(self.error(
                        token.offset,
                        format!(
                            "{word} is not a supported function; allowed: {}",
                            known.join(" ")
                        ),
                    ));
                }
            },
            TokenKind::Open => {
                self.deeper(token.offset)?;
                let inner = self.commands(token.offset, rest)?;
                let fields = match rest.first().map(|token| &token.kind) {
                    Some(TokenKind::Close) => {
                        *rest = &rest[1..];
                        match rest.first() {
                            Some(Token {
                                kind: TokenKind::Fields(fields),
                                glued: true,
                                ..
                            }) => {
                                let fields = fields.clone();
                                *rest = &rest[1..];
                                fields
                            }
                            _ => Vec::new(),
                        }
                    }
                    _ => return Err(self.error(token.offset, "this parenthesis is not closed")),
                };
                self.depth -= 1;
                Operand::Group(Box::new(inner), fields)
            }
            TokenKind::Pipe | TokenKind::Close => {
                return Err(self.error(token.offset, "a value is missing"));
            }
        })
    }

    fn deeper(&mut self, offset: usize) -> Result<(), ParseError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(offset, format!("nested more than {DEPTH_MAX} levels deep")));
        }
        Ok(())
    }
}

impl From<Closing> for usize {
    fn from(closing: Closing) -> Self {
        closing.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Template::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn knatives_own_template_is_accepted() {
        assert!(Template::parse(crate::observability::REQUEST_LOG_TEMPLATE).is_ok());
    }

    #[test]
    fn errors_outside_the_language_name_their_position() {
        for (text, place) in [
            ("{{.Request", "line 1, column 1"),
            ("a\n{{range .X}}{{end}}", "line 2, column 3: range"),
            ("{{with .X}}{{end}}", "line 1, column 3: with"),
            ("{{$x := 1}}", "line 1, column 4"),
            ("{{printf \"%s\" .X}}", "line 1, column 3: printf"),
            (
                "{{end}}",
                "line 1, column 1: {{else}} or {{end}} without a matching {{if}}",
            ),
            ("{{if .X}}", "line 1, column 1: this {{if}} has no {{end}}"),
            ("{{if .X}}{{else}}{{else}}{{end}}", "line 1, column 18"),
            ("{{if}}{{end}}", "line 1, column 1: a value is missing"),
            ("{{.A | }}", "line 1, column 1: a value is missing"),
            ("{{nil}}", "line 1, column 3: nil is not a command"),
            ("{{(.A}}", "line 1, column 3: this parenthesis"),
            ("{{.A)}}", "line 1, column 5: unmatched closing parenthesis"),
            ("{{\"x\" .A}}", "line 1, column 1: only functions"),
            ("{{\"x}}", "line 1, column 3"),
            ("{{.A..B}}", "line 1, column 3"),
            ("é{{?}}", "line 1, column 4"),
            ("{{/* x", "line 1, column 1"),
        ] {
            let why = refused(text);
            assert!(why.starts_with(place), "{text}: {why}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |n| format!("{{{{{}1{}}}}}", "(".repeat(n), ")".repeat(n));
        assert!(Template::parse(&deep(DEPTH_MAX)).is_ok());
        assert!(refused(&deep(DEPTH_MAX + 1)).contains("levels deep"));
        assert!(refused(&"{{if true}}".repeat(100_000)).contains("levels deep"));
    }
}
