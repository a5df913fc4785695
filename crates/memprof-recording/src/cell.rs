//! One value in a table.

use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, Value, ValueRef};
use rusqlite::{Result, ToSql};

/// A value in a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
}

impl Cell {
    /// A figure. SQLite's integers are signed: figures of memory are far below the limit, and the addresses above it come
    /// back as they were.
    pub fn figure(figure: u64) -> Cell {
        Cell::Int(figure.cast_signed())
    }

    /// The figure, if it is one.
    pub fn as_figure(&self) -> Option<u64> {
        match self {
            Cell::Int(figure) => Some(figure.cast_unsigned()),
            _ => None,
        }
    }

    pub fn as_int(&self) -> Option<i64> {
        match self {
            Cell::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub fn as_real(&self) -> Option<f64> {
        match self {
            Cell::Real(number) => Some(*number),
            _ => None,
        }
    }
}

impl From<Option<u64>> for Cell {
    fn from(figure: Option<u64>) -> Cell {
        figure.map_or(Cell::Null, Cell::figure)
    }
}

impl ToSql for Cell {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Null => ToSqlOutput::Owned(Value::Null),
            Cell::Int(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            Cell::Real(number) => ToSqlOutput::Owned(Value::Real(*number)),
            Cell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
        })
    }
}

impl FromSql for Cell {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Cell> {
        Ok(match value {
            ValueRef::Null => Cell::Null,
            ValueRef::Integer(number) => Cell::Int(number),
            ValueRef::Real(number) => Cell::Real(number),
            ValueRef::Text(_) => Cell::Text(String::column_result(value)?),
            ValueRef::Blob(_) => return Err(rusqlite::types::FromSqlError::InvalidType),
        })
    }
}
