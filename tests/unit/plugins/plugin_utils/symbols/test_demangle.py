# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import demangle


@pytest.mark.parametrize(
    ("demangled", "plain"),
    [
        ("os::malloc(unsigned long, MEMFLAGS)", "os::malloc"),
        ("void shop::add<int>(std::vector<int>&)::'lambda'(int)::operator()(int) const", None),
        ("operator new(unsigned long)", "operator new"),
        ("operator new[](unsigned long, std::nothrow_t const&)", "operator new[]"),
        ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
        ("unsigned int A::b<(anonymous namespace)::C>() const &", "A::b<(anonymous namespace)::C>"),
        ("<alloc::vec::Vec<T> as core::ops::Drop>::drop", "<alloc::vec::Vec<T> as core::ops::Drop>::drop"),
        ("std::ostream& operator<< <char>(std::ostream&, char)", "operator<< <char>"),
        ("foo::operator bool() const", "foo::operator bool"),
        ("foo::operator->(int)", "foo::operator->"),
        ("foo::operator&(bar const&) const", "foo::operator&"),
        ("foo::operator std::function<void (int)>() const", "foo::operator std::function<void (int)>"),
        ("foo::operator int (*)(char)()", "foo::operator int (*)(char)"),
        ("int foo::operator<<<void (*)(int)>(void (*)(int))", "foo::operator<<<void (*)(int)>"),
        ("int foo::operator<<std::function<void (int)>>(int)", "foo::operator<<std::function<void (int)>>"),
        ("int foo::operator()<int>(int)", "foo::operator()<int>"),
        ('operator"" _km(unsigned long long)', 'operator"" _km'),
        ("void (anonymous namespace)::f<int>(int)", "(anonymous namespace)::f<int>"),
        ("non-virtual thunk to (anonymous namespace)::A::f()", "(anonymous namespace)::A::f"),
        ("foo::total(int) const::'lambda'(int)::operator()(int) const", "foo::total::'lambda'::operator()"),
        ("int foo::total(int) const &::Local::go<int>(int)", "foo::total::Local::go<int>"),
        ("foo::total() const::cache", "foo::total::cache"),
        ("myoperator(int)", "myoperator"),
        ("Events::init() (.part.0)", "Events::init"),
        ("decltype(a(b)) zed<int>(int)", "zed<int>"),
        ("void (*foo(int))(char)", "void (*foo(int))(char)"),
        ("T* shop::add<int>(int) requires (sizeof (int) > 2) && Num<int> (.cold)", "shop::add<int>"),
        ("A<int>::operator+=(int) const & requires requires (T) { {f < f} -> is<bool>; }", "A<int>::operator+="),
        ("A<int>::go(int) requires Num<T>::'lambda'(T)::operator()<T>(T) const", "A<int>::go::'lambda'::operator()<T>"),
        ("void* f<int>(int) requires Is<int>::value::My::operator new(unsigned long)", "f<int>::My::operator new"),
        ("bool f() requires Is<A>::value && Num<B>", "f"),
        ("f() requires Is<A>::value", "f"),
        ("f<int>(int) requires Num<int>::cache", "f<int>::cache"),
        ("requires_::run()", "requires_::run"),
        ("main::{closure#0}", "main::{closure#0}"),
        ("f(", "f"),
    ],
)
def test_names_lose_what_is_no_name(demangled: str, plain: str | None) -> None:
    assert demangle.without_parameters(demangled) == (plain or "shop::add<int>::'lambda'::operator()")


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (b"inflate", "inflate"),
        (b"_ZN2os6mallocEm8MEMFLAGS", "os::malloc"),
        (b"_Znwm", "operator new"),
        (b"_ZZNK4shop4Cart5totalEvENKUliE_clEi", "shop::Cart::total::'lambda'::operator()"),
        (b"_ZN6Events4initEv.part.0", "Events::init"),
        (b"_ZNK4shop4CartIiEltERKS1_Q3NumIT_E", "shop::Cart<int>::operator<"),
        (b"_ZZ4mainENK3$_0clIJPKccEEEDaDpT_", "main::$_0::operator()<char const*, char>"),
        (b"_ZZN4shop3addEvENK3$_1clIiEEDaT_Q3NumIDtfp_EE", "shop::add::$_1::operator()<int>"),
        (b"_ZN4shop4CartIiEFeqERKS1_S3_Q3NumIT_E", "shop::Cart<int>::operator=="),
        (b"fill_window.isra.0", "fill_window"),
        (b"fill_window.constprop.0.cold", "fill_window"),
        (b"mime/multipart.part", "mime/multipart.part"),
        (b"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
        (b"_RNvCskwGfYPst2Cb_3foo16example_function", "foo::example_function"),
        (b"pthread_create@@GLIBC_2.34", "pthread_create"),
        (b"_ZNSt6localeC1Ev@GLIBCXX_3.4", "std::locale::locale"),
        (b"@plt", "@plt"),
        (b"_Z", "_Z"),
        (b"Java_java_util_zip_Inflater_init", "Java_java_util_zip_Inflater_init"),
        (b"a\n\x1b[31m\xff", "a��[31m�"),
    ],
)
def test_symbols_become_readable(symbol: bytes, name: str) -> None:
    assert demangle.readable(symbol) == name


def test_functions_of_a_class_with_a_long_name_stay_apart() -> None:
    names = [demangle.readable(b"_ZN3BoxI" + b"i" * 400 + b"E" + function + b"Ev") for function in (b"3add", b"4drop")]
    assert [(name[:7], name[-9:], len(name)) for name in names] == [
        ("Box<int", "int>::add", 1000),
        ("Box<int", "nt>::drop", 1000),
    ]


def test_a_name_that_would_unfold_to_gigabytes_stays_as_it_is() -> None:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    bomb = "_Z1f1AIiiE" + "".join(f"S_IS{digits[level]}_S{digits[level]}_E" for level in range(30))
    start = time.monotonic()
    assert demangle.readable(bomb.encode()) == bomb
    assert "…" in demangle.readable(b"_ZN" + b"1a" * 5000 + b"E")
    assert time.monotonic() - start < 1


@given(st.binary(max_size=60).map(b"_Z".__add__) | st.binary(max_size=60))
def test_any_symbol_becomes_a_name_of_one_line(symbol: bytes) -> None:
    assert demangle.readable(symbol).isprintable()


@given(st.text(alphabet="ab()<>[]{}-*& :,operator", max_size=60))
def test_any_text_survives(text: str) -> None:
    demangle.without_parameters(text)
