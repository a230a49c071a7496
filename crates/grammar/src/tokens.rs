//! The tokens of a model as bytes, and the tree of their common beginnings.

use std::sync::{Arc, OnceLock};

use llguidance::ParserFactory;

/// No token.
const NONE: u32 = u32::MAX;
/// Longest token in bytes that a grammar may produce; longer ones do not occur in text.
const MOST_BYTES: usize = 4096;

/// What one token is for grammars.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// Its bytes as they appear in text; those of control tokens are their names.
    pub bytes: Vec<u8>,
    /// A control token: JSON schemas, Lark and regular expressions never produce its name as text.
    pub control: bool,
    /// It ends the generation: allowed exactly where the grammar may end.
    pub end: bool,
}

/// The tokens of a model. Made once and shared by all constraints.
pub struct Tokens {
    tokens: Vec<Token>,
    ends: Vec<u32>,
    trie: OnceLock<Trie>,
    pub(crate) factory: OnceLock<Result<ParserFactory, String>>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("count", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl Tokens {
    /// The tokens in order of their ids.
    pub fn new(tokens: Vec<Token>) -> Arc<Self> {
        let ends = (0u32..).zip(&tokens).filter(|(_, token)| token.end).map(|(id, _)| id).collect();
        Arc::new(Self { tokens, ends, trie: OnceLock::new(), factory: OnceLock::new() })
    }

    /// One token for each byte and one (256) that ends: for checking texts without a model.
    pub fn bytes() -> Arc<Self> {
        let token = |byte| Token { bytes: vec![byte], control: false, end: false };
        let mut tokens: Vec<Token> = (0..=u8::MAX).map(token).collect();
        tokens.push(Token { bytes: b"<end>".to_vec(), control: true, end: true });
        Self::new(tokens)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Words of a mask with a bit for each token.
    pub fn words(&self) -> usize {
        self.tokens.len().div_ceil(32)
    }

    /// The token with this id.
    pub fn get(&self, token: u32) -> Option<&Token> {
        self.tokens.get(token as usize)
    }

    /// All tokens in order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Token)> + '_ {
        (0u32..).zip(&self.tokens)
    }

    /// The tokens that end the generation.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The token with exactly this text.
    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        // Once for each reference of a grammar, so not worth an index. Control tokens go first.
        let mut found = self.iter().filter(|(_, token)| token.bytes == text);
        let first = found.next()?;
        Some([first].into_iter().chain(found).find(|(_, token)| token.control).unwrap_or(first).0)
    }

    /// Length of the longest token in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.tokens.iter().map(|token| token.bytes.len()).max().unwrap_or(0)
    }

    /// The tree of the tokens that text can consist of.
    pub(crate) fn trie(&self) -> &Trie {
        self.trie.get_or_init(|| Trie::new(&self.tokens))
    }
}

/// All tokens that do not end the generation, as a tree of bytes written down depth first: the children of a
/// node follow it, and `end` says where its subtree ends. Walking it is a walk over arrays.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    pub(crate) nodes: Vec<Node>,
    /// Tokens in the order of their nodes; see [`Node::first`].
    pub(crate) order: Vec<u32>,
}

/// The node of one byte string.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// Last byte of the string.
    pub(crate) byte: u8,
    /// Length of the string, from 1.
    pub(crate) depth: u16,
    /// Index after the last node of the subtree.
    pub(crate) end: u32,
    /// Where its own tokens begin in `order`; they end where those of the next node begin.
    pub(crate) first: u32,
    /// ASCII bytes that occur below this node.
    pub(crate) ascii: u128,
    /// Bytes from 128 on occur below.
    pub(crate) other: bool,
}

impl Trie {
    fn new(tokens: &[Token]) -> Self {
        let usable =
            |token: &&Token| !token.end && !token.bytes.is_empty() && token.bytes.len() <= MOST_BYTES;
        let mut sorted: Vec<(&[u8], u32)> = (0u32..)
            .zip(tokens)
            .filter(|(_, token)| usable(token))
            .map(|(id, token)| (token.bytes.as_slice(), id))
            .collect();
        sorted.sort_unstable();
        let mut trie = Self::default();
        // Nodes of the string before, by depth.
        let mut path: Vec<u32> = Vec::new();
        let mut before: &[u8] = &[];
        for (bytes, id) in sorted {
            let common = before.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            trie.close(&mut path, common);
            for (depth, byte) in (1u16..).zip(bytes).skip(common) {
                path.push(trie.nodes.len() as u32);
                let first = trie.order.len() as u32;
                trie.nodes.push(Node { byte: *byte, depth, end: 0, first, ascii: 0, other: false });
            }
            trie.order.push(id);
            before = bytes;
        }
        trie.close(&mut path, 0);
        trie
    }

    /// The subtrees below this depth are complete.
    fn close(&mut self, path: &mut Vec<u32>, depth: usize) {
        while path.len() > depth {
            let Some(index) = path.pop() else { return };
            let end = self.nodes.len() as u32;
            let Some(node) = self.nodes.get_mut(index as usize) else { return };
            node.end = end;
            let (ascii, other) = match node.byte {
                byte @ 0..128 => (node.ascii | 1 << byte, node.other),
                _ => (node.ascii, true),
            };
            if let Some(parent) = path.last().and_then(|parent| self.nodes.get_mut(*parent as usize)) {
                parent.ascii |= ascii;
                parent.other |= other;
            }
        }
    }

    /// The nodes that are one byte longer.
    pub(crate) fn children(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let end_of = |index: usize| self.nodes.get(index).map_or(0, |node| node.end as usize);
        let (mut child, end) = (index + 1, end_of(index));
        std::iter::from_fn(move || {
            let found = (child < end).then_some(child)?;
            // A node's end lies behind it, whatever else is wrong.
            child = end_of(found).max(found + 1);
            Some(found)
        })
    }

    /// Tokens of exactly this node's string.
    pub(crate) fn own(&self, index: usize) -> &[u32] {
        let first = self.nodes.get(index).map_or(0, |node| node.first as usize);
        let end = self.nodes.get(index + 1).map_or(self.order.len(), |node| node.first as usize);
        self.order.get(first..end).unwrap_or_default()
    }

    /// Tokens of the node's whole subtree.
    pub(crate) fn below(&self, index: usize) -> &[u32] {
        let Some(node) = self.nodes.get(index) else { return &[] };
        let end = self.nodes.get(node.end as usize).map_or(self.order.len(), |node| node.first as usize);
        self.order.get(node.first as usize..end).unwrap_or_default()
    }
}

/// Sets the bit of a token.
pub(crate) fn allow(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

/// Whether the bit of a token is set.
pub fn allows(mask: &[u32], token: u32) -> bool {
    token != NONE && mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_every_token_once() {
        let texts: [&[u8]; 8] = [b"b", b"ab", b"abc", b"ab", b"", b"\xc3\xa9", b"a", b"<end>"];
        let tokens =
            texts.map(|bytes| Token { bytes: bytes.to_vec(), control: false, end: bytes == b"<end>" });
        let tokens = Tokens::new(tokens.to_vec());
        let trie = tokens.trie();
        let shape: Vec<_> = trie.nodes.iter().map(|node| (node.byte, node.depth, node.end)).collect();
        assert_eq!(
            shape,
            [(b'a', 1, 3), (b'b', 2, 3), (b'c', 3, 3), (b'b', 1, 4), (0xc3, 1, 6), (0xa9, 2, 6)]
        );
        assert_eq!(trie.own(0), [6]);
        assert_eq!(trie.own(1), [1, 3]);
        assert_eq!(trie.below(0), [6, 1, 3, 2]);
        assert_eq!(trie.below(4), [5]);
        assert_eq!(trie.nodes[0].ascii, (1 << b'b') | (1 << b'c'));
        assert_eq!(trie.nodes[2].ascii, 0);
        assert!(trie.nodes[4].other && !trie.nodes[5].other && !trie.nodes[0].other);
        assert_eq!(trie.children(0).collect::<Vec<_>>(), [1]);
        assert_eq!(trie.children(2).count(), 0);
        assert_eq!((tokens.find(b"ab"), tokens.find(b"x")), (Some(1), None));
        let mut mask = vec![0; tokens.words()];
        allow(&mut mask, 6);
        allow(&mut mask, 600);
        assert!(allows(&mask, 6) && !allows(&mask, 5) && !allows(&mask, 600));
    }
}
